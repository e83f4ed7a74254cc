-- outage: keepers say that they live by renewing and reaping. After a silence of all of them nobody reaps
-- for one lease: the leases ran out because nobody could renew them, and keepers come back one by one.

local SILENCE_MS = 5000

-- Notes that a keeper is here; tells whether reaping has to wait.
local function is_holding(lease_ms)
  local seen = redis.call("HMGET", REAPER, "last", "hold", "span")
  local last, hold, span = tonumber(seen[1]), tonumber(seen[2]) or 0, tonumber(seen[3]) or 0
  if not last or now_ms - last > math.min(SILENCE_MS, lease_ms / 2) then
    hold = now_ms + lease_ms
    span = 0
  end
  span = math.max(span, lease_ms)
  -- A clock that was set back does not make the hold longer, nor does a node with a short lease make that of
  -- the others shorter.
  hold = math.min(hold, now_ms + span)
  redis.call("HSET", REAPER, "last", now, "hold", text(hold), "span", text(span))
  return now_ms < hold
end
