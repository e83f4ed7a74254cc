-- record: all that is known of one task, to be shown.

-- {id, payload as JSON text, {field, value, ...}}; nothing if there is no such task, or its record is
-- unreadable.
local function record_of(id)
  local fields = redis.pcall("HGETALL", TASK .. id)
  if #fields == 0 then return nil end
  local body = redis.pcall("GET", BODY .. id)
  return { id, type(body) == "string" and body or "", fields }
end
