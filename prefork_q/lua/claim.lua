-- claim: lease a batch of pending tasks to a worker, under one new fencing token.
--
-- KEYS[1]  root
-- ARGV[1]  retention_ms  lifetime of what is found cancelled
-- ARGV[2]  the arguments of take, see parts/take.lua
-- returns  what take returns
-- uses     keys rights clock full body counters lists delays ending ghosts corrupt take

pass_when_full()
local claimed = take(2, text(now_ms + ARGV[1]))
write_counts()
return claimed
