-- record: all that is known of one task, to be shown.

local PLACES = {}
for n, name in ipairs(IN_HASH) do PLACES[name] = n end

-- {id, payload as JSON text, {field, value, ...}}; nothing if there is no such task, or its record is
-- unreadable.
local function record_of(id)
  local stored = redis.pcall("HGETALL", TASK .. id)
  if #stored == 0 then return nil end
  local fields, pieces = {}, {}
  for i = 1, #stored, 2 do
    local name, value = stored[i], stored[i + 1]
    local n = PLACES[name]
    if n then
      pieces[n] = value
    else
      fields[#fields + 1], fields[#fields + 2] = name, value
    end
  end
  return { id, #pieces > 0 and table.concat(pieces) or body_of(id) or "", fields }
end
