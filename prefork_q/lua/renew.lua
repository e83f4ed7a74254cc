-- renew: extend leases. Notes which tasks have started, and that a keeper was there.
--
-- KEYS[1]  root
-- ARGV[1]  lease_ms
-- ARGV     then three a task: id, token, started (1 once its handler was entered, else 0)
-- returns  a word a task: ok | cancel (still yours, and a cancellation was asked for) | stale
-- uses     keys rights clock full outage

local lease_ms = tonumber(ARGV[1])
local expiry, words, leases = text(now_ms + lease_ms), {}, {}
pass_when_full()
is_holding(lease_ms)
for at = 2, #ARGV, 3 do
  local id, token, has_started = ARGV[at], ARGV[at + 1], ARGV[at + 2] == "1"
  local task = TASK .. id
  local held = redis.pcall("HMGET", task, "status", "token", "cancel", "started")
  if held[1] ~= "processing" or held[2] ~= token then
    words[#words + 1] = "stale"
  else
    words[#words + 1] = held[3] and "cancel" or "ok"
    leases[#leases + 1], leases[#leases + 2] = expiry, id
    if has_started and held[4] ~= token then
      redis.call("HSET", task, "started", token)
      -- Somebody knows its type.
      redis.call("HDEL", task, "unknown_at")
    end
  end
end
if #leases > 0 then redis.call("ZADD", PROCESSING, unpack(leases)) end
return words
