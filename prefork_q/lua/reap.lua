-- reap: put tasks whose lease has expired back to their queues.
--
-- KEYS[1]  root
-- ARGV[1]  limit  how many at most
-- ARGV[2]  lease_ms
-- ARGV[3]  max_losses  expired leases of started tasks that one task survives
-- ARGV[4]  retention_ms  lifetime of a task that turns out cancelled
-- returns  {reaped | holding, expired}: an entry of expired is {id, type, queue, attempt, its status now,
--          losses}; holding: the keepers were all silent for a while, see parts/outage.lua
-- uses     keys rights clock full counters lists delays ending corrupt outage

local limit, max_losses, forget_at = ARGV[1], tonumber(ARGV[3]), text(now_ms + ARGV[4])

pass_when_full()
if is_holding(tonumber(ARGV[2])) then return { "holding", {} } end

local due = redis.call("ZRANGEBYSCORE", PROCESSING, "-inf", now, "LIMIT", 0, limit)
local expired = {}
if #due > 0 then redis.call("ZREM", PROCESSING, unpack(due)) end
for _, id in ipairs(due) do
  local task = TASK .. id
  local fields = redis.pcall("HMGET", task, "status", "queue", "attempts", "losses", "started",
    "token", "cancel", "idem", "waited", "type")
  if not fields[1] then
    to_corrupt(id)
  elseif fields[1] ~= "processing" then
    count("strays")
  else
    local attempts, losses = math.max(0, (tonumber(fields[3]) or 0) - 1), tonumber(fields[4]) or 0
    count("expired")
    if fields[5] and fields[5] == fields[6] then
      losses = losses + 1
      count("losses")
      redis.call("HDEL", task, "unknown_at")
    end
    -- No token: what the old holder says from now on is stale.
    redis.call("HSET", task, "attempts", attempts, "losses", losses, "token", 0)
    local status
    if fields[7] then
      to_cancelled(id, task, fields[8], fields[9], forget_at)
      status = "cancelled"
    elseif losses > max_losses then
      local err = string.format('{"type":"LeaseLost","message":"the lease expired %d times","traceback":""}', losses)
      to_dead(id, task, err, fields[9])
      status = "dead"
    else
      to_pending(id, task, fields[2], attempts)
      status = "pending"
    end
    expired[#expired + 1] =
      { id, fields[10] or "", fields[2] or "", tonumber(fields[3]) or 0, status, losses }
  end
end
write_sets()
write_counts()
return { "reaped", expired }
