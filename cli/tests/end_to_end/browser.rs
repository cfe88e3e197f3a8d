//! Reports in a real browser: Chromium, led through its DevTools protocol over two pipes. Each
//! report is loaded on a narrow and on a wide screen, in light and in dark colours.
//!
//! `tools/axe` fetches axe-core, which judges how people can use a page who do not see it, or not
//! as most do. Without it the other checks are made all the same.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::common::*;

/// Opens Chromium with its commands as descriptor 3 and its answers as 4.
const START: &str = "exec chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
     --disable-background-networking --disable-component-update --disable-sync \
     --remote-debugging-pipe --user-data-dir=\"$1\" 3<\"$1/commands\" 4>\"$1/answers\"";
/// Widths of a telephone and of a desk's screen, in pixels of CSS.
const WIDTHS: [u32; 2] = [400, 1280];
/// Returns the findings of axe-core, a line per rule and place; every table of values is open. The
/// inside of a drawing is presentation: `cli/src/html/colours.rs` checks its colours.
const AXE: &str = "document.querySelectorAll('details').forEach(details => details.open = true);
    axe.run({ exclude: [['svg.figure > *']] }, { resultTypes: ['violations'] }).then(found => found.violations.map(rule =>
        rule.id + ': ' + rule.nodes.map(node => node.target + ' ' + node.failureSummary).join('; ')).join('\\n'))";
/// Whether the arrow keys show the text of a figure's first value; true without such a figure.
const KEYS: &str = "(() => {
    const mark = document.querySelector('.plot [data-tip]');
    if (!mark) return true;
    mark.closest('.plot').dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true }));
    const tip = document.getElementById('tip');
    return getComputedStyle(tip).display !== 'none' && tip.textContent === mark.dataset.tip;
})()";

/// Returns the folder of `make build`.
fn target() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_freehold")).ancestors().nth(2).expect("a target folder").to_owned()
}

/// A browser with one page.
struct Browser {
    child: Child,
    commands: File,
    answers: BufReader<File>,
    session: Value,
    last: u64,
    /// Events since the last load.
    events: Vec<Value>,
    _profile: tempfile::TempDir,
}

impl Browser {
    fn open() -> Browser {
        let profile = tempfile::tempdir().expect("temporary folder");
        let pipes = ["commands", "answers"].map(|name| profile.path().join(name));
        assert!(Command::new("mkfifo").args(&pipes).status().expect("mkfifo").success());
        let mut command = Command::new("sh");
        command.args(["-c", START, "sh"]).arg(profile.path());
        // A group of its own: Chromium has processes below it, which end with it.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("it starts");
        let commands = File::options().write(true).open(&pipes[0]).expect("a pipe");
        let answers = BufReader::new(File::open(&pipes[1]).expect("a pipe"));
        let (session, events) = (Value::Null, Vec::new());
        let mut browser = Browser { child, commands, answers, session, last: 0, events, _profile: profile };
        let target = browser.ask("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        browser.session = browser.ask("Target.attachToTarget", attach)["sessionId"].clone();
        for domain in ["Page", "Network", "Runtime", "Log"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Reads a message of the browser.
    fn hear(&mut self) -> Value {
        let mut message = Vec::new();
        self.answers.read_until(0, &mut message).expect("the browser lives");
        assert_eq!(message.pop(), Some(0), "chromium is installed and starts: tools/setup");
        serde_json::from_slice(&message).expect("JSON")
    }

    /// Gives the browser a command; returns its result.
    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut command = json!({ "id": self.last, "method": method, "params": params });
        if !self.session.is_null() {
            command["sessionId"] = self.session.clone();
        }
        self.commands.write_all(format!("{command}\0").as_bytes()).expect("the browser lives");
        loop {
            let message = self.hear();
            if message["id"] == self.last {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    /// Loads a page from its start.
    fn load(&mut self, url: &str) {
        self.events.clear();
        self.ask("Page.navigate", json!({ "url": url }));
        // An event of the page before may come late.
        let is_loaded = |events: &[Value]| {
            let is_page = |event: &Value| {
                event["method"] == "Page.frameNavigated" && event["params"]["frame"]["url"] == url
            };
            let mut since = events.iter().skip_while(|event| !is_page(event));
            since.any(|event| event["method"] == "Page.loadEventFired")
        };
        while !is_loaded(&self.events) {
            let event = self.hear();
            self.events.push(event);
        }
    }

    /// Returns the value of a script's last expression; waits for a promise.
    fn value(&mut self, script: &str) -> Value {
        let params = json!({ "expression": script, "awaitPromise": true, "returnByValue": true });
        let result = self.ask("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{result}");
        result["result"]["value"].clone()
    }

    /// Returns the addresses that were asked for, and the messages of console and log.
    fn requests_and_messages(&self) -> (Vec<String>, Vec<String>) {
        let of = |methods: &[&str]| -> Vec<&Value> {
            let named = self
                .events
                .iter()
                .filter(|event| event["method"].as_str().is_some_and(|m| methods.contains(&m)));
            named.map(|event| &event["params"]).collect()
        };
        let requests = of(&["Network.requestWillBeSent"]).into_iter();
        let requests = requests.filter_map(|event| event["request"]["url"].as_str().map(str::to_owned));
        let messages = of(&["Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"]);
        (requests.collect(), messages.into_iter().map(Value::to_string).collect())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process_group(
            rustix::process::Pid::from_child(&self.child),
            rustix::process::Signal::KILL,
        );
        let _ = self.child.wait();
    }
}

/// Returns a report's text, once a browser has found nothing wrong with it.
#[track_caller]
pub fn clean_report(page: &Path) -> String {
    let url = format!("file://{}", text(&page.canonicalize().expect("a page")));
    let axe = target().join("axe-core/package/axe.min.js");
    let axe = std::env::var_os("FREEHOLD_AXE").map_or(axe, PathBuf::from);
    let axe = std::fs::read_to_string(&axe).inspect_err(|_| eprintln!("without axe-core: tools/axe")).ok();
    let mut browser = Browser::open();
    for width in WIDTHS {
        for colours in ["light", "dark"] {
            let at = format!("{} at {width} px, {colours}", page.display());
            let size = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
            browser.ask("Emulation.setDeviceMetricsOverride", size);
            let scheme = json!([{ "name": "prefers-color-scheme", "value": colours }]);
            browser.ask("Emulation.setEmulatedMedia", json!({ "features": scheme }));
            browser.load(&url);
            let wide = browser.value("document.documentElement.scrollWidth").as_u64().expect("pixels");
            assert!(wide <= width.into(), "{at}: the page is {wide} pixels wide");
            if let Some(axe) = &axe {
                browser.value(&format!("{axe};0"));
                assert_eq!(browser.value(AXE), "", "{at}");
            }
            assert_eq!(browser.value(KEYS), true, "{at}: the arrow keys show a figure's values");
            let (requests, messages) = browser.requests_and_messages();
            let outside: Vec<_> =
                requests.iter().filter(|asked| **asked != url && *asked != "data:,").collect();
            assert!(outside.is_empty(), "{at}: it asks for {outside:?}");
            assert!(messages.is_empty(), "{at}: {messages:?}");
        }
    }
    let text = std::fs::read_to_string(page).expect("a page");
    for name in ["command", "date", "host", "build of Freehold's kernel (SHA-256)"] {
        let shown = name.replace('\'', "&#39;");
        assert!(text.contains(&format!("<dt>{shown}</dt>")), "{}: its origin: {name}", page.display());
    }
    text
}

/// Checks a folder of reports that were made before: FREEHOLD_REPORTS names it.
#[test]
fn reports_that_were_made_before_are_clean() {
    let Some(folder) = std::env::var_os("FREEHOLD_REPORTS") else { return };
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let page = entry.expect("an entry").path();
        if page.extension().is_some_and(|extension| extension == "html") {
            clean_report(&page);
        }
    }
}
