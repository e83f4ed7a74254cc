-- presence: notes that a keeper is there. After a time in which none was heard of, leases have run out
-- because nobody could renew them: nobody reaps then for one lease, whichever keeper speaks first and
-- whatever it says.

local function keeper_is_here(lease_ms)
  local reaper = root .. "reaper"
  local seen = redis.call("HMGET", reaper, "last", "hold")
  local last, hold = tonumber(seen[1]), tonumber(seen[2]) or 0
  if not last or now_ms - last > math.min(5000, lease_ms / 2) then hold = now_ms + lease_ms end
  redis.call("HSET", reaper, "last", now_ms, "hold", hold)
  return hold
end
