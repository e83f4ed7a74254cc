-- delete: delete dead tasks for good.
--
-- KEYS[1]  root
-- ARGV     the ids
-- returns  a word a task: ok | not_dead | missing
-- uses     keys rights clock full counters removal

local words = {}
pass_when_full()
for i, id in ipairs(ARGV) do
  local fields = redis.pcall("HMGET", TASK .. id, "status", "idem")
  if fields[1] and fields[1] ~= "dead" then
    words[i] = "not_dead"
  else
    words[i] = fields[1] and "ok" or "missing"
    -- What is listed without a readable record goes too.
    if redis.call("ZREM", DEAD, id) == 1 then count("removed") end
    remove(id, fields[2])
  end
end
write_counts()
return words
