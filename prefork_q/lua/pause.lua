-- pause: claim nothing more from a queue.
--
-- KEYS[1]  root
-- ARGV[1]  queue
-- returns  ok | missing (nobody works on it, and no task was ever submitted to it)
-- uses     keys rights full

if redis.call("HEXISTS", QUEUES, ARGV[1]) == 0 then return "missing" end
pass_when_full()
redis.call("SADD", PAUSED, ARGV[1])
return "ok"
