-- page: the next tasks of one index, with their records. Changes nothing, and looks at a bounded number
-- of entries however long the index is. Whatever stays in the index while it is paged through is seen,
-- unless more than a thousand newer ones are purged between two pages; what moves meanwhile may be seen twice.
--
-- KEYS[1]  root
-- ARGV[1]  index   processing, delayed (the next due first), dead, recent (the newest first), or pending
--                  (the newest first)
-- ARGV[2]  queue   for pending: which
-- ARGV[3]  at      where the last page ended: a score, or in a list a place; "" for the first page
-- ARGV[4]  after   the id that it ended with; "" with a score: begin beyond that score
-- ARGV[5]  limit   tasks at most
-- ARGV[6]  scan    entries looked at, at most
-- ARGV[7]  bytes   of records, about at most; one task is always given; 0: ids alone
-- ARGV[8]  status  that a task must have, "" for any
-- ARGV[9]  type    likewise
-- ARGV[10] queue   likewise
-- returns  {tasks, at, after}: a task as in show, or {id}; at and after are "" if the index ends here
-- uses     keys body record

local index = ARGV[1]
local at, after = ARGV[3], ARGV[4]
local limit, scan, bytes = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local is_wanted = { status = ARGV[8], type = ARGV[9], queue = ARGV[10] }
local is_newest_first = index == "dead"
local list = index == "pending" and PENDING .. ARGV[2] or index == "recent" and RECENT
local zset = root .. index

-- A pending list still holds the ghosts of cancelled tasks; those are listed among the recent.
if is_wanted.status == "" and index ~= "recent" then is_wanted.status = index end

-- New entries come in on the left, so an entry's place grows, but for a purge, which takes the newest away: the
-- last one seen is looked for around where it was. If it is not found there, so many have come that nothing
-- unseen has passed its old place; but if it was purged, all that are left have moved.
local DRIFT = 1000

local function place_after()
  local place = tonumber(at)
  local first = math.max(0, place - DRIFT)
  local ids = redis.pcall("LRANGE", list, first, place + DRIFT)
  for i, id in ipairs(ids) do
    if id == after then return first + i end
  end
  return redis.call("EXISTS", TASK .. after) == 1 and place or 0
end

-- How many entries stand before (score, id), itself included if so asked; equal scores are in the order
-- of their ids, and that one need not be there any more.
local function rank_of(score, id, is_included)
  local low = redis.call("ZCOUNT", zset, "-inf", "(" .. score)
  local high = redis.call("ZCOUNT", zset, "-inf", score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local member = redis.call("ZRANGE", zset, middle, middle)[1]
    if member < id or is_included and member == id then low = middle + 1 else high = middle end
  end
  return low
end

local function start_of()
  if at == "" then return 0 end
  if list then return place_after() end
  if is_newest_first then return redis.call("ZCARD", zset) - rank_of(at, after, false) end
  return rank_of(at, after, true)
end

local function window(start, n)
  if list then return redis.pcall("LRANGE", list, start, start + n - 1), 1 end
  local command = is_newest_first and "ZREVRANGE" or "ZRANGE"
  return redis.call(command, zset, start, start + n - 1, "WITHSCORES"), 2
end

local function fits(id)
  local fields = redis.pcall("HMGET", TASK .. id, "status", "type", "queue")
  if fields.err then return false end
  return (is_wanted.status == "" or fields[1] == is_wanted.status)
    and (is_wanted.type == "" or fields[2] == is_wanted.type)
    and (is_wanted.queue == "" or fields[3] == is_wanted.queue)
end

local tasks, size, start = {}, 0, start_of()

local function add(id)
  local record = bytes == 0 and { id } or record_of(id)
  if not record then return end
  tasks[#tasks + 1] = record
  if bytes == 0 then return end
  size = size + #record[2]
  for _, value in ipairs(record[3]) do size = size + #value end
end

local entries, step = window(start, scan)
for i = 1, #entries, step do
  local id = entries[i]
  if fits(id) then add(id) end
  local seen = (i - 1) / step + 1
  if #tasks >= limit or seen >= scan or bytes > 0 and size >= bytes then
    local place = list and string.format("%.0f", start + seen - 1) or entries[i + 1]
    return { tasks, place, id }
  end
end
return { tasks, "", "" }
