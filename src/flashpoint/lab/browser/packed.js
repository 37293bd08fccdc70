/* What the page brings along: facts as JSON, binaries as base64 of gzip. */
const Packed = (() => {
  "use strict";
  const take = (id) => {
    const node = document.getElementById(id);
    const text = node.textContent;
    node.remove(); // its text takes more memory than what it holds
    return text;
  };

  const fromBase64 = (text) => {
    const characters = atob(text);
    const bytes = new Uint8Array(characters.length);
    for (let i = 0; i < bytes.length; i += 1) bytes[i] = characters.charCodeAt(i);
    return bytes;
  };

  const binary = async (id) => {
    const unpacked = new Blob([fromBase64(take(id))]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(unpacked).arrayBuffer());
  };

  return { binary, facts: () => JSON.parse(take("facts")), fromBase64 };
})();
