"""The smallest model of a history, and two states of its stage."""

MODEL = """
format: historize/1
target_schemas: [{short_name: rawcore}]
target_datasets:
  - target_schema: rawcore
    target_dataset_name: rc_c
    input: stage.csv
    target_columns:
      - {target_column_name: id, datatype: BIGINT, system_role: business_key, nullable: false}
      - {target_column_name: city, datatype: STRING}
"""
FIRST, SECOND = "id,city\n1,Bern\n2,Rome\n", "id,city\n1,Oslo\n3,Graz\n"
