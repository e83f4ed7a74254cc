-- release: give claimed tasks back without an outcome; their attempts do not count.
--
-- KEYS[1]  root
-- ARGV[1]  retention_ms  lifetime of a task that turns out cancelled
-- ARGV[2]  unknown_limit_ms  how long a task is given back for its unknown type before it is dead
-- ARGV     then four a task, the oldest first: id, token, error as JSON text (used if it is dead),
--          delay_ms ("": back to the head of its queue at once; else its type is unknown here, or without an
--          error it is put off)
-- returns  a word a task: ok | cancelled (that was asked for) | dead (its type was unknown for too
--          long) | stale (the lease is another's, or nobody's)
-- uses     keys rights clock full counters lists delays ending settle

local words, forget_at, unknown_limit_ms = {}, text(now_ms + ARGV[1]), tonumber(ARGV[2])
pass_when_full()
for at = 3, #ARGV, 4 do
  words[#words + 1] = settle("release", ARGV[at], ARGV[at + 1], 0, ARGV[at + 2], ARGV[at + 3],
    forget_at, unknown_limit_ms)
end
write_sets()
write_counts()
return words
