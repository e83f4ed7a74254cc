-- commit: complete, fail and release what is ready, and claim what there is room for, in one call.
--
-- KEYS[1]  root
-- ARGV[1]  retention_ms  lifetime of what ends
-- ARGV[2]  unknown_limit_ms  how long a task of an unknown type is given back before it is dead
-- ARGV[3]  n  how many groups of outcomes follow, each of those that have in common: verb, token, delay_ms;
--             then how many they are, and of each: id, ran_ms, text
-- ARGV     then the arguments of take, see parts/take.lua
-- returns  {words, what take returns}; a word is ok, stale or what has become of the task instead of what
--          its verb says: cancelled, dead
-- uses     keys clock full body counters lists delays ending ghosts corrupt settle take

local words, forget_at, unknown_limit_ms, at = {}, text(now_ms + ARGV[1]), tonumber(ARGV[2]), 4
pass_when_full()
for _ = 1, tonumber(ARGV[3]) do
  local verb, token, delay_ms, first = ARGV[at], ARGV[at + 1], ARGV[at + 2], at + 4
  at = first + 3 * tonumber(ARGV[at + 3])
  for i = first, at - 1, 3 do
    words[#words + 1] = settle(verb, ARGV[i], token, ARGV[i + 1], ARGV[i + 2], delay_ms, forget_at,
      unknown_limit_ms)
  end
end
-- What is put back is on its list before the claim looks there.
write_sets()
local claimed = take(at, forget_at)
write_counts()
return { words, claimed }
