-- watch: ask for a message on the channel of a task when it ends.
--
-- KEYS[1]  root
-- ARGV[1]  id
-- returns  the task's status now | missing
-- uses     keys

local fields = redis.pcall("HMGET", TASK .. ARGV[1], "status", "waited")
if fields.err or not fields[1] then return "missing" end
local status = fields[1]
if status == "succeeded" or status == "dead" or status == "cancelled" or fields[2] then return status end
redis.call("HSET", TASK .. ARGV[1], "waited", 1)
return status
