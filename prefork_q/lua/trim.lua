-- trim: delete the oldest dead tasks beyond the limit of their number or age.
--
-- KEYS[1]  root
-- ARGV[1]  dead_limit
-- ARGV[2]  dead_retention_ms
-- ARGV[3]  limit  how many at most in this call
-- returns  how many were deleted; as many as the limit means: call again
-- uses     keys rights clock full counters removal

local limit = tonumber(ARGV[3])
local over = math.min(redis.call("ZCARD", DEAD) - ARGV[1], limit)
local ids = over > 0 and redis.call("ZRANGE", DEAD, 0, over - 1) or {}
if #ids < limit then
  local old = redis.call("ZRANGEBYSCORE", DEAD, "-inf", text(now_ms - ARGV[2]), "LIMIT", 0, limit)
  -- Both are the oldest ones, so the longer list holds the other.
  if #old > #ids then ids = old end
end

if #ids == 0 then return 0 end
pass_when_full()
redis.call("ZREM", DEAD, unpack(ids))
for _, id in ipairs(ids) do
  local fields = redis.pcall("HMGET", TASK .. id, "idem", "status")
  if fields[2] and fields[2] ~= "dead" then
    count("strays")
  else
    remove(id, fields[1])
    count("trimmed")
    count("removed")
  end
end
write_counts()
return #ids
