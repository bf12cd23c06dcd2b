INSERT INTO customer (id, region, name, price, seen_at, free)
  VALUES (3, 'US', 'Cy', 0.01, '2024-05-01 00:00:00+00', 1e20);
UPDATE customer SET
  tags = array_fill('tag'::text, ARRAY[900]), codes = array_fill(7, ARRAY[900]),
  long_codes = array_fill(7::bigint, ARRAY[900]), days = array_fill('2024-02-29'::date, ARRAY[900]),
  ids = array_fill('00000000-0000-0000-0000-000000000001'::uuid, ARRAY[900]),
  ratios = array_fill(0.5::double precision, ARRAY[900]), bio = repeat('bio ', 900),
  photo = decode(repeat('00ff', 1800), 'hex'), photos = array_fill('\x00ff'::bytea, ARRAY[900]),
  docb = jsonb_build_object('x', repeat('doc ', 900)), page = ('<a>' || repeat('page ', 900) || '</a>')::xml
  WHERE id = 1;
UPDATE customer SET tier = 'silv' WHERE id = 1;
UPDATE customer SET id = 20 WHERE id = 2;
BEGIN;
UPDATE plain SET name = 'uno' WHERE id = 1;
UPDATE plain SET n = 2.25 WHERE id = 1;
INSERT INTO plain VALUES (2, NULL, NULL);
DELETE FROM plain WHERE id = 1;
INSERT INTO plain VALUES (1, 'again', -0.0001);
COMMIT;
UPDATE whole SET amount = 12.50 WHERE id = 1;
UPDATE whole SET note = repeat('note ', 900) WHERE id = 1;
UPDATE whole SET name = 'Bo' WHERE id = 2;
UPDATE whole SET amount = 13 WHERE id = 1;
DELETE FROM whole WHERE id = 2;
DELETE FROM customer WHERE id = 3;
BEGIN;
TRUNCATE plain;
INSERT INTO plain VALUES (3, 'three', 3);
COMMIT;
ALTER TABLE whole ADD COLUMN city text;
INSERT INTO whole VALUES (4, 'Di', 1, NULL, 'Oslo');
SELECT pg_logical_emit_message(true, 'note', 'hello');
INSERT INTO done VALUES (1);
