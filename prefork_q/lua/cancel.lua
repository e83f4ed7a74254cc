-- cancel: end a task that has not ended. A pending one stays on its list as a ghost, which claim drops
-- (taking it out of a list of millions would block the server); a running one is asked to stop.
--
-- KEYS[1]  root
-- ARGV[1]  id
-- ARGV[2]  retention_ms  lifetime of the cancelled task
-- returns  cancelled | requested (it runs; it is cancelled when it is put back) | ended | missing
-- uses     keys clock counters wake ending

local CANCELS_LIMIT = 1000

local id, retention_ms = ARGV[1], tonumber(ARGV[2])
local task = TASK .. id
local fields = redis.pcall("HMGET", task, "status", "queue", "idem", "waited", "cancel")
if fields.err or not fields[1] then return "missing" end
local status = fields[1]
if status == "cancelled" then return "cancelled" end
if status == "succeeded" or status == "dead" then return "ended" end

if status == "processing" then
  if not fields[5] then
    redis.call("PERSIST", PROCESSING)
    redis.call("HSET", task, "cancel", 1)
    redis.call("ZADD", root .. "cancels", now_ms, id)
    redis.call("ZREMRANGEBYRANK", root .. "cancels", 0, -CANCELS_LIMIT - 1)
  end
  return "requested"
end

redis.call("DEL", BODY .. id)
if status == "delayed" then
  redis.call("ZREM", DELAYED, id)
  to_cancelled(id, fields[3], fields[4], retention_ms)
else
  -- The ghost keeps its record until claim has dropped it: an id without one would look corrupt.
  redis.call("HSET", task, "status", "cancelled", "finished_at", now_ms)
  redis.call("HINCRBY", GHOSTS, fields[2], 1)
  ended[#ended + 1], ended[#ended + 2] = now_ms, id
  count("cancelled")
  tell(id, task, "cancelled", fields[4])
end
write_sets()
write_counts()
return "cancelled"
