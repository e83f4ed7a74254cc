-- wake: a script cannot block, so workers block on lists of tokens. One token a queue is enough:
-- who takes it and leaves tasks behind puts it back.

local function wake(queue)
  if redis.call("LLEN", WAKE .. queue) == 0 then redis.call("LPUSH", WAKE .. queue, 1) end
end

-- Tells the keepers, if `due` is earlier than all that they know of.
local function wake_mover(due, first_due)
  if (not first_due or due < first_due) and redis.call("LLEN", MOVER) == 0 then
    redis.call("LPUSH", MOVER, 1)
  end
end

local function first_due()
  local first = redis.call("ZRANGE", DELAYED, 0, 0, "WITHSCORES")
  return first[2] and tonumber(first[2])
end
