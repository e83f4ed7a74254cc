-- cancellations: the running tasks whose cancellation was asked for since a time. Changes nothing.
--
-- KEYS[1]  root
-- ARGV[1]  since  ms, inclusive
-- returns  id, asked at, ...: those of it that still run under the same lease are told so by renew
-- uses     keys

local found = redis.pcall("ZRANGEBYSCORE", CANCELS, ARGV[1], "+inf", "WITHSCORES")
return found.err and {} or found
