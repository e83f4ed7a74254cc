-- pause: claim nothing more from a queue.
--
-- KEYS[1]  root
-- ARGV[1]  queue
-- returns  ok | missing (no task was ever submitted to it)
-- uses     keys

if redis.call("HEXISTS", QUEUES, ARGV[1]) == 0 then return "missing" end
redis.call("SADD", PAUSED, ARGV[1])
return "ok"
