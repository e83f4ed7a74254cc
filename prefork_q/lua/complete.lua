-- complete: write the results of handlers that returned; the tasks have succeeded.
--
-- KEYS[1]  root
-- ARGV[1]  retention_ms  lifetime of the ended tasks
-- ARGV     then four a task: id, token, ran_ms, result as JSON text
-- returns  a word a task: ok | stale (the lease is another's, or nobody's)
-- uses     keys clock counters wake ending settle

local entries = {}
for at = 2, #ARGV, 4 do
  entries[#entries + 1] = { "complete", ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3] }
end
local words = settle(entries, tonumber(ARGV[1]), 0)
write_sets()
write_counts()
return words
