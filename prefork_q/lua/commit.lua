-- commit: complete, fail and release what is ready, and claim what there is room for, in one call.
--
-- KEYS[1]  root
-- ARGV[1]  retention_ms  lifetime of what ends
-- ARGV[2]  unknown_limit_ms  how long a task of an unknown type is given back before it is dead
-- ARGV[3]  n  how many outcomes follow, six arguments each: verb, id, token, ran_ms, text, delay_ms
-- ARGV     then the arguments of take, see parts/take.lua
-- returns  {words, what take returns}; a word is ok, stale or what has become of the task instead of what
--          its verb says: cancelled, dead
-- uses     keys clock full body counters lists delays ending ghosts corrupt settle take

local words, forget_at, unknown_limit_ms, at = {}, text(now_ms + ARGV[1]), tonumber(ARGV[2]), 4
pass_when_full()
for i = 1, tonumber(ARGV[3]) do
  words[i] = settle(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5],
    forget_at, unknown_limit_ms)
  at = at + 6
end
-- What is put back is on its list before the claim looks there.
write_sets()
local claimed = take(at, forget_at)
write_counts()
return { words, claimed }
