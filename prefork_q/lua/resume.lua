-- resume: claim from a paused queue again.
--
-- KEYS[1]  root
-- ARGV[1]  queue
-- returns  ok | missing (no task was ever submitted to it)
-- uses     keys wake

if redis.call("HEXISTS", QUEUES, ARGV[1]) == 0 then return "missing" end
redis.call("SREM", PAUSED, ARGV[1])
if redis.call("LLEN", PENDING .. ARGV[1]) > 0 then wake(ARGV[1]) end
return "ok"
