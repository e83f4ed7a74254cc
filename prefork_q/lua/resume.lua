-- resume: claim from a paused queue again.
--
-- KEYS[1]  root
-- ARGV[1]  queue
-- returns  ok | missing (nobody works on it, and no task was ever submitted to it)
-- uses     keys rights full lists

if redis.call("HEXISTS", QUEUES, ARGV[1]) == 0 then return "missing" end
pass_when_full()
redis.call("SREM", PAUSED, ARGV[1])
if has_tasks(ARGV[1]) then wake(ARGV[1]) end
return "ok"
