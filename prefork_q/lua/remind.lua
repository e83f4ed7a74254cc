-- remind: leave a wake-up token for every queue with tasks, in case one was lost with a connection.
--
-- KEYS[1]  root
-- ARGV[1]  cursor  0 to begin, then what the last call returned
-- ARGV[2]  limit  how many queues to look at in this call, about
-- returns  {cursor, n, pending}: n of the queues that were looked at have tasks and are not paused; pending
--          is how many tasks wait in those looked at, paused or not; cursor 0: done
-- uses     keys rights full lists

local n, pending, scanned = 0, 0, redis.call("HSCAN", QUEUES, ARGV[1], "COUNT", ARGV[2])
pass_when_full()
for i = 1, #scanned[2], 2 do
  local queue = scanned[2][i]
  pending = pending + waiting_in(queue)
  if has_tasks(queue) and not is_paused(queue) then
    n = n + 1
    wake(queue)
  end
end
return { scanned[1], n, pending }
