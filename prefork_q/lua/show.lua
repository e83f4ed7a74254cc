-- show: one task. Changes nothing.
--
-- KEYS[1]  root
-- ARGV[1]  id
-- returns  {} if there is none, else {{id, payload, {field, value, ...}}}
-- uses     keys body record

return { record_of(ARGV[1]) }
