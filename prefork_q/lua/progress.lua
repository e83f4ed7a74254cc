-- progress: note how far running tasks are.
--
-- KEYS[1]  root
-- ARGV     three a task: id, token, progress as JSON text
-- returns  a word a task: ok | stale
-- uses     keys

local words = {}
for at = 1, #ARGV, 3 do
  local task, n = TASK .. ARGV[at], (at - 1) / 3 + 1
  local held = redis.pcall("HMGET", task, "status", "token")
  if held.err or held[1] ~= "processing" or held[2] ~= ARGV[at + 1] then
    words[n] = "stale"
  else
    words[n] = "ok"
    redis.call("HSET", task, "progress", ARGV[at + 2])
  end
end
return words
