-- commit: complete, fail and release what is ready, and claim what there is room for, in one call.
--
-- KEYS[1]  root
-- ARGV[1]  retention_ms  lifetime of what ends
-- ARGV[2]  unknown_limit_ms  how long a task of an unknown type is given back before it is dead
-- ARGV[3]  n  how many outcomes follow, six arguments each: verb, id, token, ran_ms, text, delay_ms
-- ARGV     then the arguments of take, see parts/take.lua
-- returns  {words, what take returns}; a word is ok or stale
-- uses     keys clock counters wake ending corrupt settle take

local retention_ms, n = tonumber(ARGV[1]), tonumber(ARGV[3])
local entries, at = {}, 4
for i = 1, n do
  entries[i] = { ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5] }
  at = at + 6
end
local words = settle(entries, retention_ms, tonumber(ARGV[2]))
-- What was put back is on its list before the claim looks there.
write_sets()
ended, died, delayed, put_back, put_on = {}, {}, {}, {}, {}
local claimed = take(at, retention_ms)
write_sets()
write_counts()
return { words, claimed }
