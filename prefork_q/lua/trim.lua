-- trim: delete the oldest dead tasks beyond the limit of their number or age.
--
-- KEYS[1]  root
-- ARGV[1]  dead_limit
-- ARGV[2]  dead_retention_ms
-- ARGV[3]  limit  how many at most in this call
-- returns  how many were deleted; as many as the limit means: call again
-- uses     keys clock counters

local over = redis.call("ZCARD", DEAD) - tonumber(ARGV[1])
local limit = tonumber(ARGV[3])
local ids = {}
if over > 0 then
  ids = redis.call("ZRANGE", DEAD, 0, math.min(over, limit) - 1)
end
if #ids < limit then
  local old = redis.call("ZRANGEBYSCORE", DEAD, "-inf", now_ms - tonumber(ARGV[2]), "LIMIT", 0, limit)
  if #old > #ids then ids = old end
end

if #ids == 0 then return 0 end
redis.call("ZREM", DEAD, unpack(ids))
for _, id in ipairs(ids) do
  local idem = redis.pcall("HGET", TASK .. id, "idem")
  redis.call("UNLINK", TASK .. id, BODY .. id)
  if type(idem) == "string" then redis.call("UNLINK", IDEM .. idem) end
end
count("trimmed", #ids)
count("removed", #ids)
write_counts()
return #ids
