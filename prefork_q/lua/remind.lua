-- remind: leave a wake-up token for every queue with tasks, in case one was lost with a connection.
--
-- KEYS[1]  root
-- returns  how many queues have tasks and are not paused
-- uses     keys wake

local n = 0
for _, queue in ipairs(redis.call("HKEYS", QUEUES)) do
  local length = redis.pcall("LLEN", PENDING .. queue)
  if type(length) == "number" and length > 0 and redis.call("SISMEMBER", PAUSED, queue) == 0 then
    n = n + 1
    wake(queue)
  end
end
return n
