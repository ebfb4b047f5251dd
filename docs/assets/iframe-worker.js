/* SPDX-License-Identifier: Apache-2.0 */
/* Lets the search of the site run from files: browsers refuse workers for file:// addresses, so an invisible frame with
 * the worker's script takes the place of a worker. The theme recognizes it by the name IFrameWorker. */
(function () {
  "use strict";
  if (location.protocol !== "file:") {
    return;
  }
  class FrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.pending = [];
      this.target = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.addEventListener("load", () => this.start(new URL(url, location.href).href), { once: true });
      document.body.appendChild(this.frame);
    }
    start(address) {
      const frame = this.frame.contentWindow;
      const script = frame.document.createElement("script");
      frame.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      script.src = address;
      script.addEventListener("load", () => {
        this.target = frame;
        this.pending.splice(0).forEach((data) => this.postMessage(data));
      });
      frame.document.body.appendChild(script);
    }
    postMessage(data) {
      if (this.target === null) {
        this.pending.push(data);
      } else {
        this.target.dispatchEvent(new MessageEvent("message", { data }));
      }
    }
    terminate() {
      this.frame.remove();
    }
  }
  window.Worker = FrameWorker;
  window.IFrameWorker = FrameWorker;
})();
