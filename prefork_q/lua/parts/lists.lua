-- lists: putting ids on the pending lists, and the wake-up tokens. A script cannot block, so workers block
-- on lists of tokens. One token a queue is enough: who takes it and leaves tasks behind puts it back.

local function is_paused(queue) return redis.pcall("SISMEMBER", PAUSED, queue) == 1 end

local function has_no_token(queue) return redis.pcall("LLEN", WAKE .. queue) == 0 end

local function wake(queue)
  if has_no_token(queue) then redis.call("LPUSH", WAKE .. queue, "1") end
end

local function wake_unless_paused(queue)
  if has_no_token(queue) and not is_paused(queue) then redis.call("LPUSH", WAKE .. queue, "1") end
end

-- What is no list counts as tasks too: whoever claims next sets it aside.
local function has_tasks(queue) return redis.pcall("LLEN", PENDING .. queue) ~= 0 end

-- Without the ghosts of those that were cancelled.
local function waiting_in(queue)
  local listed, ghosts = redis.pcall("LLEN", PENDING .. queue), redis.pcall("HGET", GHOSTS, queue)
  if type(listed) ~= "number" then return 0 end
  return math.max(0, listed - (tonumber(type(ghosts) == "string" and ghosts or nil) or 0))
end

-- Something that is no list is out of the way from then on, and can be looked at.
local function set_aside(queue)
  local place = root .. "misplaced:" .. queue
  local free, n = place, 1
  while redis.call("RENAMENX", PENDING .. queue, free) == 0 do
    n = n + 1
    free = place .. ":" .. n
  end
end

-- Another trouble than that something else stands there (a right that is missing) is not for us to mend.
local function require_wrong_type(answer)
  if not string.find(answer.err, "WRONGTYPE", 1, true) then error(answer.err, 0) end
end

-- `command` is LPUSH for the end of the queue, RPUSH for its head.
local function push(command, queue, ids)
  local pushed = redis.pcall(command, PENDING .. queue, unpack(ids))
  if type(pushed) == "table" then
    require_wrong_type(pushed)
    set_aside(queue)
    redis.call(command, PENDING .. queue, unpack(ids))
  end
end
