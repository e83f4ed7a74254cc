-- delete: delete dead tasks for good.
--
-- KEYS[1]  root
-- ARGV     the ids
-- returns  a word a task: ok | not_dead | missing
-- uses     keys clock counters

local words = {}
for i, id in ipairs(ARGV) do
  local fields = redis.pcall("HMGET", TASK .. id, "status", "idem")
  if fields.err or not fields[1] then
    words[i] = "missing"
  elseif fields[1] ~= "dead" then
    words[i] = "not_dead"
  else
    words[i] = "ok"
    redis.call("ZREM", DEAD, id)
    redis.call("UNLINK", TASK .. id, BODY .. id)
    if fields[2] then redis.call("UNLINK", IDEM .. fields[2]) end
    count("removed")
  end
end
write_counts()
return words
