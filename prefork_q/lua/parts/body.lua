-- body: the payload of a task, opaque to every script. Redis keeps a hash compact only while each of its
-- values has at most 64 bytes, and a key of its own costs as much memory and time as the rest of a small task.
-- So a short payload lies in the task's hash, in pieces, and only a longer one apart.

local PIECE, PIECES = 64, 8
local IN_HASH = { "body", "body2", "body3", "body4", "body5", "body6", "body7", "body8" }

-- The first write of a task: its payload, its status and the other fields that are given.
local function store_with_body(id, task, body, status, ...)
  local size = #body
  if size <= PIECE then
    redis.call("HSET", task, "status", status, "body", body, ...)
  elseif size <= 2 * PIECE then
    redis.call("HSET", task, "status", status, "body", string.sub(body, 1, PIECE),
      "body2", string.sub(body, PIECE + 1), ...)
  elseif size <= PIECES * PIECE then
    local pieces = {}
    for n = 1, math.ceil(size / PIECE) do
      pieces[2 * n - 1], pieces[2 * n] = IN_HASH[n], string.sub(body, (n - 1) * PIECE + 1, n * PIECE)
    end
    redis.call("HSET", task, "status", status, ...)
    redis.call("HSET", task, unpack(pieces))
  else
    redis.call("SET", BODY .. id, body)
    redis.call("HSET", task, "status", status, "apart", "1", "extra", "1", ...)
  end
end

-- `first` and `second` are the fields body and body2 of the task. Nil if there is no payload.
local function body_of(id, task, first, second)
  if not first then
    local body = redis.pcall("GET", BODY .. id)
    return type(body) == "string" and body or nil
  end
  if not second then return first end
  if #second < PIECE then return first .. second end
  local body, more = first .. second, redis.call("HMGET", task, unpack(IN_HASH, 3))
  for _, piece in ipairs(more) do body = piece and body .. piece or body end
  return body
end

local function drop_body(id, task)
  redis.call("HDEL", task, unpack(IN_HASH))
  redis.call("UNLINK", BODY .. id)
end
