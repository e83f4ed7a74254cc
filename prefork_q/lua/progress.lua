-- progress: note how far running tasks are.
--
-- KEYS[1]  root
-- ARGV     three a task: id, token, progress as JSON text
-- returns  a word a task: ok | stale
-- uses     keys rights full

local words = {}
pass_when_full()
for at = 1, #ARGV, 3 do
  local task = TASK .. ARGV[at]
  local held = redis.pcall("HMGET", task, "status", "token")
  if held[1] ~= "processing" or held[2] ~= ARGV[at + 1] then
    words[#words + 1] = "stale"
  else
    words[#words + 1] = "ok"
    redis.call("HSET", task, "progress", ARGV[at + 2])
  end
end
return words
