-- fail: write the errors of handlers that raised; a task is delayed for its retry, or dead.
--
-- KEYS[1]  root
-- ARGV[1]  retention_ms  lifetime of a task that turns out cancelled
-- ARGV     then four a task: id, token, error as JSON text, delay_ms ("": no attempt is left)
-- returns  a word a task: ok | stale (the lease is another's, or nobody's)
-- uses     keys clock counters wake ending settle

local entries = {}
for at = 2, #ARGV, 4 do
  entries[#entries + 1] = { "fail", ARGV[at], ARGV[at + 1], 0, ARGV[at + 2], ARGV[at + 3] }
end
local words = settle(entries, tonumber(ARGV[1]), 0)
write_sets()
write_counts()
return words
