-- commit: complete, fail and release what is ready, and claim what there is room for, in one call.
--
-- KEYS[1]  root
-- ARGV[1]  retention_ms  lifetime of what ends
-- ARGV[2]  unknown_limit_ms  how long a task of an unknown type is given back before it is dead
-- ARGV[3]  n  how many groups of outcomes follow, each of those that have in common: verb, token, delay_ms;
--             then ran_ms of each, with spaces between; how many texts, which is 1 if all have the same, and
--             the texts; how many ids, and the ids
-- ARGV     then the arguments of take, see parts/take.lua
-- returns  {words, what take returns}; a word is ok, stale or what has become of the task instead of what
--          its verb says: cancelled, dead
-- uses     keys rights clock full body counters lists delays ending ghosts corrupt settle take

local words, forget_at, unknown_limit_ms, at = {}, text(now_ms + ARGV[1]), tonumber(ARGV[2]), 4
pass_when_full()
for _ = 1, tonumber(ARGV[3]) do
  local verb, token, delay_ms = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local ran_ms = string.gmatch(ARGV[at + 3], "%S+")
  local first_text, texts = at + 5, tonumber(ARGV[at + 4])
  local first_id = first_text + texts + 1
  local ids = tonumber(ARGV[first_id - 1])
  for i = 0, ids - 1 do
    words[#words + 1] = settle(verb, ARGV[first_id + i], token, ran_ms(), ARGV[first_text + i % texts],
      delay_ms, forget_at, unknown_limit_ms)
  end
  at = first_id + ids
end
-- What is put back is on its list before the claim looks there.
write_sets()
local claimed = take(at, forget_at)
write_counts()
return { words, claimed }
