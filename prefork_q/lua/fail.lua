-- fail: write the errors of handlers that raised; a task is delayed for its retry, or dead.
--
-- KEYS[1]  root
-- ARGV[1]  retention_ms  lifetime of a task that turns out cancelled
-- ARGV     then four a task: id, token, error as JSON text, delay_ms ("": no attempt is left)
-- returns  a word a task: ok | cancelled (that was asked for, and it is not retried) |
--          stale (the lease is another's, or nobody's)
-- uses     keys rights clock full counters lists delays ending settle

local words, forget_at = {}, text(now_ms + ARGV[1])
pass_when_full()
for at = 2, #ARGV, 4 do
  words[#words + 1] = settle("fail", ARGV[at], ARGV[at + 1], 0, ARGV[at + 2], ARGV[at + 3], forget_at)
end
write_sets()
write_counts()
return words
