-- renew: extend leases. Notes which tasks have started, and that a keeper was there.
--
-- KEYS[1]  root
-- ARGV[1]  lease_ms
-- ARGV     then three a task: id, token, started (1 once its handler was entered, else 0)
-- returns  a word a task: ok | cancel (still yours, and a cancellation was asked for) | stale
-- uses     keys clock presence

local expiry, words, leases = now_ms + tonumber(ARGV[1]), {}, {}
local started = {}
for at = 2, #ARGV, 3 do
  local id, n = ARGV[at], (at - 2) / 3 + 1
  local held = redis.pcall("HMGET", TASK .. id, "status", "token", "cancel", "started")
  if held.err or held[1] ~= "processing" or held[2] ~= ARGV[at + 1] then
    words[n] = "stale"
  else
    words[n] = held[3] and "cancel" or "ok"
    leases[#leases + 1], leases[#leases + 2] = expiry, id
    if ARGV[at + 2] == "1" and held[4] ~= held[2] then started[id] = held[2] end
  end
end

redis.call("PERSIST", PROCESSING)
if #leases > 0 then redis.call("ZADD", PROCESSING, unpack(leases)) end
for id, token in pairs(started) do redis.call("HSET", TASK .. id, "started", token) end
keeper_is_here(tonumber(ARGV[1]))
return words
