-- reap: put tasks whose lease has expired back to their queues. After a time in which no keeper was
-- heard of, nobody reaps for one lease: the leases ran out because nobody could renew them.
--
-- KEYS[1]  root
-- ARGV[1]  limit  how many at most
-- ARGV[2]  lease_ms
-- ARGV[3]  max_losses  expired leases of started tasks that one task survives
-- ARGV[4]  retention_ms  lifetime of a task that turns out cancelled
-- returns  {reaped | holding, expired}: an entry of expired is {id, type, its status now, losses}
-- uses     keys clock presence counters wake ending corrupt

local limit, lease_ms, max_losses = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

redis.call("PERSIST", PROCESSING)
if now_ms < keeper_is_here(lease_ms) then return { "holding", {} } end

local due = redis.call("ZRANGEBYSCORE", PROCESSING, "-inf", now_ms, "LIMIT", 0, limit)
local expired, tasks = {}, {}
for _, id in ipairs(due) do
  local fields = redis.pcall("HMGET", TASK .. id, "status", "queue", "attempts", "losses", "started",
    "token", "cancel", "idem", "waited", "type")
  tasks[#tasks + 1] = fields
end
if #due > 0 then redis.call("ZREM", PROCESSING, unpack(due)) end
for i, id in ipairs(due) do
  local fields = tasks[i]
  if fields.err or not fields[1] then
    to_corrupt(id)
  elseif fields[1] == "processing" then
    local attempts = math.max(0, (tonumber(fields[3]) or 0) - 1)
    local losses = tonumber(fields[4]) or 0
    local has_started = fields[5] and fields[5] == fields[6]
    count("expired")
    if has_started then
      losses = losses + 1
      count("losses")
      redis.call("HSET", TASK .. id, "losses", losses)
    end
    -- No token: what the old holder says from now on is stale.
    redis.call("HSET", TASK .. id, "token", "0")
    local status
    if fields[7] then
      to_cancelled(id, fields[8], fields[9], tonumber(ARGV[4]))
      status = "cancelled"
    elseif losses > max_losses then
      redis.call("HSET", TASK .. id, "attempts", attempts)
      to_dead(id, string.format('{"type":"LeaseLost","message":"the lease expired %d times"}', losses), fields[9])
      status = "dead"
    else
      to_pending(id, fields[2], attempts)
      status = "pending"
    end
    expired[#expired + 1] = { id, fields[10], status, losses }
  end
end
write_sets()
write_counts()
return { "reaped", expired }
