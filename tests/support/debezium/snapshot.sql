CREATE TYPE mood AS ENUM ('glad', 'sad');
CREATE TABLE customer (
  id int NOT NULL, region text NOT NULL, name varchar(40) NOT NULL, tier char(4), mood mood,
  vip boolean DEFAULT false, small smallint, big bigint, ratio real, exact double precision,
  price numeric(12, 2), huge numeric(38, 0), free numeric, cash money,
  born date, wakes time, wakes_there timetz, seen timestamp, seen_ms timestamp(3), seen_at timestamptz,
  term interval, tags text[], codes int[], long_codes bigint[], days date[], prices numeric(8, 2)[],
  times timestamptz[], ids uuid[], ratios double precision[], bio text, photo bytea, photos bytea[],
  doc json, docb jsonb, page xml, ref uuid, flags bit(12), flag bit(1), place point, address inet, span int4range,
  PRIMARY KEY (id, region)
);
-- Long values are stored out of line, and not compressed.
ALTER TABLE customer
  ALTER tags SET STORAGE EXTERNAL, ALTER codes SET STORAGE EXTERNAL, ALTER long_codes SET STORAGE EXTERNAL,
  ALTER days SET STORAGE EXTERNAL, ALTER ids SET STORAGE EXTERNAL, ALTER ratios SET STORAGE EXTERNAL,
  ALTER bio SET STORAGE EXTERNAL, ALTER photo SET STORAGE EXTERNAL, ALTER photos SET STORAGE EXTERNAL,
  ALTER docb SET STORAGE EXTERNAL, ALTER page SET STORAGE EXTERNAL;
CREATE TABLE plain (id bigint PRIMARY KEY, name text, n numeric(10, 4));
CREATE TABLE whole (id int PRIMARY KEY, name text NOT NULL, amount numeric(10, 2), note text);
ALTER TABLE whole ALTER note SET STORAGE EXTERNAL, REPLICA IDENTITY FULL;
CREATE TABLE done (id int PRIMARY KEY);
INSERT INTO customer VALUES (
  1, 'EU', 'Zoë 😀', 'gold', 'glad', true, -32768, 9223372036854775807, 1.5, 0.1,
  9999999999.99, -99999999999999999999999999999999999999, 12.3400, '12.34',
  '0001-01-01', '23:59:59.999999', '12:30:00.5+02', '2024-02-29 12:00:00.123456', '1969-12-31 23:59:59.999',
  '2024-02-29 12:00:00.123456+01', '1 day 04:05:06.789', ARRAY['a', NULL, 'c'], ARRAY[1, NULL, -3],
  ARRAY[9007199254740993], ARRAY['2024-02-29'::date], ARRAY[1.10, -2.25],
  ARRAY['2024-02-29 12:00:00+00'::timestamptz], ARRAY['00000000-0000-0000-0000-000000000001'::uuid],
  ARRAY[0.5], 'short', '\x00ff10', ARRAY['\x01'::bytea], '{"a": 1.10}', '{"b": [1, 2]}', '<a>1</a>',
  '123e4567-e89b-12d3-a456-426614174000', B'000000000011', B'1', point(1, 2), '10.0.0.1', int4range(1, 5));
INSERT INTO customer (id, region, name) VALUES (2, 'EU', '');
INSERT INTO plain VALUES (1, 'one', 1.5000);
INSERT INTO whole VALUES (1, 'Ada', 10.00, 'first'), (2, 'Bob', NULL, NULL);
