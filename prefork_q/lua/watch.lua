-- watch: ask for a message on the channel of a task when it ends.
--
-- KEYS[1]  root
-- ARGV[1]  id
-- returns  the task's status now | missing
-- uses     keys rights full

local task = TASK .. ARGV[1]
local fields = redis.pcall("HMGET", task, "status", "waited")
local status, waited = fields[1], fields[2]
if not status then return "missing" end
if status == "pending" or status == "delayed" or status == "processing" then
  if not waited then
    pass_when_full()
    redis.call("HSET", task, "waited", 1, "extra", 1)
  end
end
return status
