# needs: node
# An HTTP server and its client, a process and a thread. $1 is an empty folder.
cd "$1" || exit 1
cat >server.js <<'END'
const http = require('http'), crypto = require('crypto'), zlib = require('zlib'), fs = require('fs');
const { execSync } = require('child_process'), { Worker } = require('worker_threads');
const server = http.createServer((request, response) => {
	let bytes = 0;
	request.on('data', data => (bytes += data.length));
	request.on('end', () => response.end(`${request.method} ${request.url} ${bytes}`));
});
const ask = (port, path, body) => new Promise((done, failed) => {
	const request = http.request({ port, path, host: '127.0.0.1', method: 'POST' }, response => {
		let text = '';
		response.on('data', data => (text += data));
		response.on('end', () => done(`${response.statusCode} ${text}`));
	});
	request.on('error', failed);
	request.end(body);
});
server.listen(0, '127.0.0.1', async () => {
	const { port } = server.address();
	for (let i = 0; i < 10; i++) console.log(await ask(port, `/x${i}`, 'y'.repeat(10000 * i)));
	console.log(crypto.createHash('sha256').update('a').digest('hex'), zlib.gunzipSync(zlib.gzipSync('a'.repeat(1000))).length);
	fs.writeFileSync('file', 'written');
	console.log(fs.readFileSync('file', 'utf8'), execSync('echo from below').toString());
	const worker = new Worker("require('worker_threads').parentPort.postMessage(6 * 7)", { eval: true });
	worker.on('message', answer => { console.log(answer); server.close(); process.exitCode = 5; });
});
END
node server.js
