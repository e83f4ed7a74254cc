-- complete: write the results of handlers that returned; the tasks have succeeded.
--
-- KEYS[1]  root
-- ARGV[1]  retention_ms  lifetime of the ended tasks
-- ARGV     then four a task: id, token, ran_ms, result as JSON text
-- returns  a word a task: ok | stale (the lease is another's, or nobody's)
-- uses     keys rights clock full counters lists delays ending settle

local words, forget_at = {}, text(now_ms + ARGV[1])
pass_when_full()
for at = 2, #ARGV, 4 do
  words[#words + 1] = settle("complete", ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], "", forget_at)
end
write_sets()
write_counts()
return words
