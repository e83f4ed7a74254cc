-- cancel: end a task that has not ended. A pending one stays on its list as a ghost, which claim drops;
-- a running one is asked to stop.
--
-- KEYS[1]  root
-- ARGV[1]  id
-- ARGV[2]  retention_ms  lifetime of the cancelled task
-- returns  cancelled | requested (it runs; it is cancelled when it is put back) | ended | missing
-- uses     keys rights clock full body counters lists delays ending ghosts

local CANCELS_LIMIT = 1000

local id, forget_at = ARGV[1], text(now_ms + ARGV[2])
local task = TASK .. id
local fields = redis.pcall("HMGET", task, "status", "queue", "idem", "waited", "cancel")
local status, queue, idem, waited = fields[1], fields[2] or "default", fields[3], fields[4]
if not status then return "missing" end
if status == "cancelled" then return "cancelled" end
if status == "succeeded" or status == "dead" then return "ended" end

pass_when_full()
if status == "processing" then
  if not fields[5] then
    redis.call("HSET", task, "cancel", 1)
    -- What makes it heard of soon; else it is when its lease is renewed. A clock that was set back does not
    -- put it among the oldest, which go.
    local last = redis.pcall("ZRANGE", CANCELS, -1, -1, "WITHSCORES")
    redis.pcall("ZADD", CANCELS, text(math.max(now_ms, tonumber(last[2]) or 0)), id)
    redis.pcall("ZREMRANGEBYRANK", CANCELS, 0, -CANCELS_LIMIT - 1)
  end
  return "requested"
end

drop_body(id, task)
if status == "delayed" then
  redis.call("ZREM", DELAYED, id)
  to_cancelled(id, task, idem, waited, forget_at)
else
  to_ghost(task, queue)
  to_cancelled(id, task, idem, waited)
end
write_sets()
write_counts()
return "cancelled"
