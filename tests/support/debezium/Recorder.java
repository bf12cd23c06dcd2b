import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.FileReader;
import java.io.FileWriter;
import java.io.PrintWriter;
import java.util.Properties;

/** Runs Debezium's engine with the properties of a file and writes each message to another: key, tab, value. */
public class Recorder {
    public static void main(String[] files) throws Exception {
        Properties properties = new Properties();
        try (FileReader reader = new FileReader(files[0])) {
            properties.load(reader);
        }
        try (PrintWriter messages = new PrintWriter(new FileWriter(files[1]), true);
                DebeziumEngine<?> engine = DebeziumEngine.create(Json.class)
                        .using(properties)
                        .using((success, message, error) -> {
                            if (error != null) {
                                error.printStackTrace();
                            }
                        })
                        .notifying(event -> messages.println(event.key() + "\t" + event.value()))
                        .build()) {
            engine.run();
        }
    }
}
