-- corrupt: a listed id whose task is missing or unreadable leaves the list and is noted, so that it
-- harms nothing and an operator can see it.

-- As in counters.
redis.call("ZCARD", CORRUPT)

local CORRUPT_LIMIT = 1000

local function to_corrupt(id)
  redis.call("ZADD", CORRUPT, now, id)
  redis.call("ZREMRANGEBYRANK", CORRUPT, 0, -CORRUPT_LIMIT - 1)
  count("corrupt")
  count("removed")
end
