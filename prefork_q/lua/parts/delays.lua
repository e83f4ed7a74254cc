-- delays: putting ids on the delayed set.

local function first_due()
  local first = redis.call("ZRANGE", DELAYED, 0, 0, "WITHSCORES")
  return first[2] and tonumber(first[2])
end

-- `dues` is {due, id, ...}, the dues as numbers. The keepers sleep until the first due that they know of,
-- so they are told of an earlier one.
local function delay(dues)
  local known, earliest = first_due(), dues[1]
  for i = 1, #dues, 2 do
    earliest = math.min(earliest, dues[i])
    dues[i] = text(dues[i])
  end
  redis.call("ZADD", DELAYED, unpack(dues))
  -- A hint, which must not stop what has been written: the keepers look now and then all the same.
  if (not known or earliest < known) and redis.pcall("LLEN", MOVER) == 0 then
    redis.pcall("LPUSH", MOVER, 1)
  end
end
