-- ghosts: a cancelled task that was pending stays on its list, since taking an id out of a list of millions
-- would block the server. It is counted, and its record kept, until whoever walks the list drops it: an id
-- without a record would look corrupt.

-- As in counters.
redis.call("HEXISTS", GHOSTS, "")

local function to_ghost(task, queue)
  redis.call("HSET", task, "ghost", 1)
  redis.call("HINCRBY", GHOSTS, queue, 1)
end

local function drop_ghost(id, queue, forget_at)
  local task = TASK .. id
  -- On the list twice, it is a ghost once.
  if redis.call("HDEL", task, "ghost") == 0 then
    count("strays")
    return
  end
  redis.call("HINCRBY", GHOSTS, queue, -1)
  expire(id, task, redis.call("HGET", task, "idem"), true, forget_at)
end
