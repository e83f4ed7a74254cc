-- remind: leave a wake-up token for every queue with tasks, in case one was lost with a connection.
--
-- KEYS[1]  root
-- returns  how many queues have tasks and are not paused
-- uses     keys full lists

local n = 0
pass_when_full()
for _, queue in ipairs(redis.call("HKEYS", QUEUES)) do
  if has_tasks(queue) and not is_paused(queue) then
    n = n + 1
    wake(queue)
  end
end
return n
