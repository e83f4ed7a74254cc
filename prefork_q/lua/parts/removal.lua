-- removal: all that belongs to a task goes, the idempotency key unless it is another task's by now.

local function remove(id, idem)
  redis.call("UNLINK", TASK .. id, BODY .. id)
  if not idem then return end
  local owner = redis.call("GET", IDEM .. idem)
  if owner and string.match(owner, "^%S+") == id then redis.call("UNLINK", IDEM .. idem) end
end
